"""One call as data and steps: `call.py` has the record, every other file a step of its way.

The order of the steps is in `runtime.py`. A step takes the call and the services that it may use,
and returns how the call ends, or None to go on.
"""
