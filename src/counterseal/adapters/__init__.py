"""Agent frameworks under contract: one module a framework, each an extra of the package.

A framework is imported only when its module is: `from counterseal.adapters.langgraph import …`.

How an adapter is written. It maps four things of its framework to a `HostCall` (`host.py`): the
tool's name, the arguments as the model wrote them, the provider's id of the call, and the
conversation that survives a resume; and it passes the framework's own function as `execute`.
`Host.submit` answers with an `Answer`:

- `answer.ok`: return `answer.native` if it is set, else the result made again from `answer.value`
  (the call was executed before, or some of its output is withheld from the model);
- `answer.pending`: pause the framework in its own way with `pending.record()`, unless `host.waits`.
  On resume pass the host's answer to `host.vote` and submit the *same* call again: the ledger and
  the approval decide, never the answer itself;
- else a refusal: the framework's error result with `answer.text`;
- `NotRecordedError` is raised through: the framework must stop, because nothing can be recorded.

How it is tested. `tests/adapters/frameworks/README.md` says what the module of a framework offers
to the shared cases (`tests/adapters/cases.py`) and to the fail matrix (`faults.py`); its packages
stand in `tests/adapter_tools.py`, its guide in `docs/frameworks/`. `python3 dev.py test --adapters`
runs everything.
"""
