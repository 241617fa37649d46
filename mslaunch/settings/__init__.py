"""What a launch can be configured with: each setting with its type, default, flag and sentence. Data only."""
