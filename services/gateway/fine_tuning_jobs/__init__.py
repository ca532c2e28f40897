"""Makes the runs of fine-tuning jobs, and reads what has become of them."""
