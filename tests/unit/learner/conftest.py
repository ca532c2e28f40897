"""Run torch with one thread. In small models its threads wait for each other longer than they
compute, and twenty times as long if other processes use the cores."""

import torch

torch.set_num_threads(1)
