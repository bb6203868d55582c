"""InSS' actor: the world it is trained in, soft actor-critic with discrete actions, and the record of a training."""
