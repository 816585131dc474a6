"""The other side of a hosted engine: what runs in the process that has vLLM or SGLang.

That process may have another Python and other versions of torch and transformers than the trainer, so nothing here
imports more of Podium than the records of `rollout.base` and plain tensor code.
"""
