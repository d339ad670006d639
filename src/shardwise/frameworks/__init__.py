"""Launch configurations of other frameworks, written from a plan and read back as a layout.

One file a framework: its options, and how a layout is said with them. `registry` has all of them;
`exported` is what they are given, `launch` what they read. Level 8: imports plan and the rooms
below; JAX is not needed.
"""
