"""A simulated inference engine: OpenAI-compatible HTTP, the engine's metric names, a known response surface.

It computes no model.  A real step-wise continuous-batching scheduler (``scheduler``, ``blocks``) runs in scaled time; the
time of every step comes from the closed formulae of ``surface``.  It exists for tests and for people without a GPU, and it
labels itself everywhere: start banner, ``owned_by`` of ``/v1/models``, version ``simulated-…``.

Run it with ``python -m autotuner_worker.simulator.server --config FILE --port N``.

The time of one step
--------------------
With ``D`` decoding sequences (``T`` tokens, drafts included), ``P`` prefill tokens, ``C`` tokens of context read by
the decoding sequences, ``A`` the sum over prefill chunks of chunk × mean context, ``B`` sequences in the step::

    memory  = weights_bytes / bandwidth  +  C · kv_token_bytes / bandwidth · (1 + 8 / block_size)
    compute = d · T  +  p · P · (1 + P / 40000)  +  a · A
    device  = overhead  +  (memory⁴ + compute⁴)^(1/4)  +  drafting  +  tensor-parallel exchange
    share   = 0.03 for B ≤ 24, then 0.03 + 0.12 · (B − 24) / 24, at most 0.5
    step    = device / (1 − share) · (1 / 0.85 with enforce_eager) · noise

The constants of the reference model (7 · 10⁹ parameters, bfloat16) on the reference device (40 GiB, 1.555 TB/s) are
``overhead`` 0.4 ms (0.8 ms without asynchronous scheduling), ``d`` 0.4 ms, ``p`` 0.033 ms, ``a`` 2.1·10⁻¹³ s; ``d``,
``p`` and ``a`` grow with the parameters and shrink with the device's arithmetic (models below 3 · 10⁹ parameters take the
time of one of that size, so that the simulator's own cost, about 30 µs of CPU per token, stays out of the figures).  What follows from it:

* R1: memory bound below a batch of about 24, compute bound above: 850 tokens/s at batch 8, about 2100 at 32.
* R3, R4: the scheduler's share makes throughput *fall* beyond a batch of about 40: ``max_num_seqs`` has an optimum.
* R16: a prompt of 8k takes about 340 ms in one step and 300 ms in chunks of 2048; 32k: 2100 ms and 1300 ms.  Small
  chunks pay the weights again each step, large ones the P² term: ``max_num_batched_tokens`` has an optimum.
* R5: a large ``block_size`` reads long contexts faster and costs 5 % of the KV cache per doubling above 32.
* R9: CUDA graphs take 15 % less than eager steps; eager starts skip compilation and capture.
* Speculation: ``k`` drafts make ``T = D · (1 + k)``: nearly free while memory bound, costly when compute bound.  Drafts
  are accepted one by one with probability ``α · (1 − 0.4 · min(temperature, 1))``.

Number formats: float32 doubles weights and arithmetic; ``fp8`` halves weights (arithmetic × 0.6), ``awq``/``gptq`` keep
28 % (× 1.15), ``int8_per_channel_weight_only`` 50 % (× 1.05); an 8-bit KV cache halves the bytes of a token.
``tensor_parallel_size`` n divides weights, arithmetic and KV reads by n and adds 0.35 ms · log2 n per step.

Memory
------
``KV = gpu_memory_utilization · memory − weights − activations(max_num_batched_tokens, max_num_seqs) − graphs``.  Nothing
left, less than one ``max_model_len``, or more than the device has free: exit code 1 with the messages of a real engine.
Under load, once the KV cache is half full, the engine runs out of memory with the probability of R7 (5 % at 0.85, 18 % at
0.90, 43 % at 0.95, linear between); whether it strikes is drawn once from ``--sim-seed`` and the configuration, so the
same launch always ends the same way.  A full KV cache preempts the youngest sequence, which is recomputed later.

Time
----
``--time-scale X`` multiplies all serving times (0.1 = ten times faster), ``--startup-scale`` those of the start-up, which
is that of a real engine (about a minute; default 0.02).  ``--sim-noise S`` multiplies steps by exp(normal(0, S)), seeded.

Faults
------
``--fault NAME[=ARG]`` (repeatable, or comma separated in ``AUTOTUNER_SIM_FAULT``):

====================================  ==================================================================================
``never_ready``                       starts, never listens
``exit_at_start[=CODE]``              traceback and exit (1)
``slow_start[=SECONDS]``              that much longer to start, unscaled (30)
``print_100mb[=MEGABYTES]``           prints that much to standard output while starting (100)
``garbage``                           answers completions with bytes that are not the protocol
``empty_answers``                     answers without a single token
``error_chunk``                       HTTP 200, some tokens, an error chunk, then a normal end of stream
``hang_under_load[=REQUESTS]``        stops making tokens when that many requests have come (8); ``/health`` stays 200
``crash_after_n_requests[=REQUESTS]`` the engine dies when that many requests have come (8): error chunks, then exit code 0
``ignore_sigterm``                    only SIGKILL ends it
``spawn_orphan[=session]``            starts a child that ignores SIGTERM and outlives the server; ``session``: detached
====================================  ==================================================================================

``AUTOTUNER_SIM_TIME_SCALE``, ``AUTOTUNER_SIM_STARTUP_SCALE``, ``AUTOTUNER_SIM_SEED`` and ``AUTOTUNER_SIM_NOISE`` set the
defaults of the options of those names.
"""

SIMULATOR_VERSION = "simulated-1.0"
"""What the engine reports as its version, everywhere."""
