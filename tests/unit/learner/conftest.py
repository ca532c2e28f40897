"""One thread of torch: its threads wait for each other at every product, which in models this small
takes longer than the product, and where other processes have the cores twenty times as long."""

import torch

torch.set_num_threads(1)
