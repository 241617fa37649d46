"""Side by side with msrun and torchrun: ratios taken in one run, since machines are noisy."""
