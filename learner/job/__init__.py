"""A learner whose ranks an engine has started, on one host or several: torchrun, srun, Kubernetes.

The ranks take the standard variables of a torch job and meet in its TCPStore. Before they take the
pool they check that they fit together. While they train, each notices that another rank is gone.
"""
