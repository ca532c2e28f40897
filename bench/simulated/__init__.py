"""What stands in for GPUs, vLLM, the learner, fleets of workers and network links in benchmarks."""
