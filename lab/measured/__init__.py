"""Public measurements that claims about predictors are judged by: each reader turns one folder below HEADROOM_DATA into
samples of `solvers.models`. None of the measurements is part of this project.
"""
