"""Real GPUs as `Devices`, made of boards, setters, sharing and a crew."""
