"""Tools in processes and sandboxes of their own.

`pool` keeps processes (`Workers`) and `sandboxes` sandboxes (`Sandboxes`); `child` is the runtime's
side of one process; `messages` is what the two sides send each other; `processes` reads /proc;
`sandbox` has the rules of a sandbox. `worker` and `seal` run inside.
"""
