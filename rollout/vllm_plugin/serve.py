"""`python -m rollout.vllm_plugin.serve`: vLLM's API server with a shorter start.

vLLM starts its engine and its workers as new Python processes, and each first imports the server's
main module. vLLM's own main module imports the whole API server; this one imports nothing.
"""

import gc

# Looking for cycles takes a sixth of the CPU time of the imports. `register` allows it again, in
# each of vLLM's processes.
gc.disable()

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
