"""Approvals: a person sees the exact consequence of one call, and allows that call only.

`terms` combines what contract and policy demand, decides who may vote and counts votes, `packet` is
what an approver reads, `packet_formats` renders it, `display` shows foreign values safely, `tokens`
signs the proof. Pure: nothing is stored or executed here.
"""
