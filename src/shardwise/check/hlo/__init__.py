"""Analysis of the text of a compiled program: the scheduled HLO that XLA prints for TPU, GPU, CPU.

    text          parse the text: computations, with their instructions in schedule order
    shape         parse array shapes, with their tiles and memory spaces
    loops         how often each computation runs
    groups        which devices a collective joins, and over which mesh axes it runs
    device_grid   the grid of devices that groups suggest when no mesh is known
    forms         where each collective starts and ends: sync, async, fused, offloaded
    reductions    which all-reduces are reduce-scatters in effect
    collectives   every collective once, with its axes, bytes and run count
    source        the lines of the traced function that instructions come from
    sharding      mesh axes that shard each dim of an argument
    dataflow      facts carried through fusions, branches and loops
    replication   axes along which arrays differ between chips, and their arguments
    updates       arguments that are returned updated, or copied
    reshards      collectives of activations that no product needs
    traffic       HBM bytes of each instruction
    costs         FLOPs of each instruction
    scopes        the planned operation and the training pass of an instruction
    buffers       which results share memory, and the live range of each buffer
    loop_carry    which activations and gradients loops save in their carry
    memory        peak memory over the schedule, and the arrays that are live then

The functions are pure. They use only the standard library and NumPy.
"""
