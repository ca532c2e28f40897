"""OpenAI's graders as a verifier: `grader`, whose parameter `grader` is OpenAI's grader object.

`shapes` has the objects and their checks, `templates` and `formulas` the two small languages in
them, `similarity` the measures of text, `python_grader` the program in the sandbox. All of these
are pure but the last. `evaluation` scores a grader in a worker process. `model_graders` asks
models, and `grader_verifier` puts both together in the service's event loop.
"""
