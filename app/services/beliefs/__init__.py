"""What is believed of models on devices, learned and predicted."""
