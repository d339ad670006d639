"""Timeline of a compiled program: its total time, what runs when on which engine, and the waits.

    steps       the four kinds of schedule steps: compute, transfer, await, loop
    schedule    simulate the steps: engines, waits, and how much of each transfer is hidden
    durations   seconds of an operation, from the compiler's cycles or from a roofline
    kernels     FLOPs of attention kernels, which are opaque to the compiler
    result      the timeline as values: totals, transfers, bars
    places      physical positions of the devices of a program
    network     seconds of a collective, by the planner's cost model on the links of its groups
    lower       a compiled program -> steps
    build       a compiled program and its machine -> timeline
    trace       timeline -> Chrome trace

The model: One core runs the operations in schedule order. Separate engines run the transfers: the
links of each torus axis (or within a node, between nodes, between slices), DMA to HBM, DMA to and
from the host, and SparseCores. Each engine runs one transfer at a time; a collective over several
axes occupies all of their engines. A `done` blocks the core until its transfer has ended. A
collective that is fused with operations progresses only while those run. So the time of a program
is that of its operations plus that of its waits, and every wait is attributed to a transfer.

Not modelled: contention for HBM between transfers and operations, contention between links, traffic
between the two devices of one chip, late hosts, and differences between chips. Seconds of single
operations are the compiler's estimates or roofline bounds, not measurements.
"""
