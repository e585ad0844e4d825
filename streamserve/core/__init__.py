"""Pure rules: what a request, an answer and a prediction are, and who decides what when.

Nothing here sees a broker, a clock, a random source or a file. Time comes in as `now_ms` (integer epoch milliseconds
of the broker's clock) and wake-ups go out as `next_deadline_ms()`.
"""
