"""A load generator for servers with the OpenAI API, and what it measures.

`requests` says when requests are sent and with which prompts, `client` sends one of them, and
`schedule` all of them: at their times, or from a fixed number of users. `measurement` computes
latencies and throughput, `prediction` simulates the same requests under a plan, `bench` joins them.
"""
