"""Mudi: training jobs in the slack of inference, one service to a device."""
