"""One call as data and steps.

`call.py` has the record, and what its steps use: leases, tasks, settings of tenants. `capture.py`
and `events.py` make what is kept and recorded. Every other file is a step of the call's way.

The order of the steps is in `runtime.py`. A step takes the call and the services that it may use,
and returns how the call ends, or None to go on.
"""
