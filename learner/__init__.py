"""The learner: `python -m learner`, one process per device, one run at a time.

`rank` is a process that trains. `__main__` and `supervise` start the ranks, and start them again
when one dies. `rl` and `sft` are the two training scripts; read them top to bottom. `step` trains
one batch of `rl`, `supervised_loss` has the losses of `sft`. `state` is everything that training
changes. Imports go down this list, never up:

    __main__
    rank
    supervise, rl, sft
    coordinate, tools       rank 0 between batches; commands on checkpoints
    assembly                the models and optimizers that a run starts or resumes with
    step, supervised_loss   one batch
    shared_gpu              the GPU that the learner shares with vLLM on this host
    checkpoints, publishing, sft_data
    persist                 writes to the data volume
    environment             what a run is trained with: ranks, store, volume
    state, store            what training changes; the run in the store
    metrics                 of steps, from plain values
    model                   models and their passes
    batch, optim            samples; updates
    objective               tensors in, tensors out
    job                     ranks that an engine has started, on one host or several
    distributed, slices     ranks, and what each holds of a sharded weight
    transient_errors        errors that may pass by the next start
    errors, listeners, settings

Nothing here may talk to Redis except through `services.store`, import `rollout` or `reward`, or
load a file that can run code (pickle, `torch.load`).
"""

from services.runtime.quiet import quiet_torchao

quiet_torchao()
