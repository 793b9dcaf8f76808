"""Tools in processes and sandboxes of their own.

`isolated` makes an attempt of it, `workers` keeps the processes; `child`, `pipes`, `framing`,
`starting`, `processes` and `sandbox` are the runtime's side of one, and `worker`, `lending`,
`limits` and `seal` what runs inside. `cover` hides secrets on both sides.
"""
