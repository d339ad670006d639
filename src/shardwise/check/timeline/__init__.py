"""How long a compiled program takes, with what, and how its profile will look.

    steps       what is left of a schedule when only time matters
    schedule    walk it: engines, what waits for what, what of a transfer is hidden
    durations   seconds of an operation: by the compiler's cycles, or by roofline
    kernels     FLOPs of attention kernels, which the compiler does not see into
    line        the result: totals, transfers, bars
    places      where the devices of a program are
    network     seconds of a collective: its groups on the links, at the planner's prices
    lower       a compiled program as steps
    build       program and machine -> timeline
    trace       timeline -> Chrome trace

The model. One core runs the operations in the order of the schedule. Links of each torus axis (or
of the node, between nodes, between slices), DMA to HBM, DMA to and from the host and SparseCores
are engines of their own, each busy with one transfer at a time; a collective over several axes
holds all of them. A `done` stops the core until its transfer has ended. A collective fused with
operations moves while those run. A step is therefore the operations plus what is waited for, and
every wait has a name.

What it leaves out: transfers and operations do not slow each other where they share HBM, links cost
the same whatever else runs, the two devices of one chip exchange bytes for nothing, hosts are never
late, and nothing is said of what differs from chip to chip. Seconds of single operations are the
compiler's estimate or a bound, not measurements; neither is fitted to a run.
"""
