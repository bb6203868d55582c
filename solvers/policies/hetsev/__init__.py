"""HetSev: autoscaling over several GPU types by an integer programme, and co-locating placement."""
