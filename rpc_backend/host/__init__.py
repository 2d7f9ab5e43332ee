"""The host: what a program or a command uses to run a model over workers.

Belongs here: the facade, the engine, tokenizer, chat templates, host sampling. Must not be here:
argument parsing and printing, which `cli` owns.
"""
