"""Every predictor on every suitable public data set, on splits that are the same for all of them."""
