"""What users declare: documents, what they refer to, who owns which knob, and who may join."""
