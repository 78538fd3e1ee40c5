"""The reference engine: SEMANTICS.md in ordinary Python objects, slow and simple (`engine.implementation=reference`).

Every decode step is an event and every token has a time. It shares no code with the compiled engine, so if the two
agree to the bit, both do what SEMANTICS.md says.

Try a new mechanism here first: it takes a few lines of Python, and no compilation.

1. Give it an option: a field of `EngineConfig` (`framework/engine/setup/config.py`), which every section reads as
   `s.options.engine`. What is derived from it may be a field of `Options` or `Spec` (`options.py`), which `setup.py`
   fills.
2. Give its state a field of `Request`, `Instance` or `Step` (`state.py`), and change its section: `arrivals`,
   `scheduling` and `forming` (what a step holds), `kv` (blocks and preemption), `prefixes`, `duration` (seconds of a
   step), `step_end`, `transfers`, `roles`. A new kind of event is one more branch of `loop.process`.
3. If policies should see it, add a row to the columns of `inspection.py`. If they should decide it, add a method to
   `Policy` and a row to `framework/policy/hooks.py`, and ask `s.hooks.ask(name, number)` if `name` is among
   `s.hooks.overrides`.
4. Run it like any other: `run.py engine.implementation=reference ...`, with any policy, trace, metric and report.

To keep it, specify it in SEMANTICS.md and add it to the compiled engine: the differential tests
(`tests/engine/test_exact.py`) then compare the two over random runs.
"""
