"""Timeline of a compiled program: how long it takes, on which engines, and what its profile shows.

    steps       what remains of a schedule when only time matters
    schedule    simulate it: engines, waits, and how much of each transfer is hidden
    durations   seconds of an operation: from the compiler's cycles, or from a roofline
    kernels     FLOPs of attention kernels, which are opaque to the compiler
    result      the timeline as values: totals, transfers, bars
    places      physical positions of the devices of a program
    network     seconds of a collective: its groups on the links, at the planner's prices
    lower       a compiled program as steps
    build       program and machine -> timeline
    trace       timeline -> Chrome trace

The model. One core runs the operations in schedule order. The links of each torus axis (or within
a node, between nodes, between slices), DMA to HBM, DMA to and from the host, and SparseCores are
separate engines, each busy with one transfer at a time; a collective over several axes occupies all
of them. A `done` blocks the core until its transfer has ended. A collective fused with operations
progresses while those run. A step is therefore its operations plus its waits, and every wait is
attributed to a transfer.

Not modelled: transfers and operations that contend for HBM, contention between links, bytes that
the two devices of one chip exchange, late hosts, and differences between chips. Seconds of single
operations are the compiler's estimate or a bound, not measurements; neither is fitted to a run.
"""
