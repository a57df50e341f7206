"""A text and a checkpoint in, what each head read out: tokens, weights, encoders, runs."""
