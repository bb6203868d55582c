"""One router per noun: decode, check who asks, call one service, encode. No decisions, no SQL."""
