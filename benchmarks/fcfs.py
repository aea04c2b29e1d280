"""First come, first served in three lines: the least that a policy of one's own can be."""


class Fcfs:
    """Decodes, then prompts in chunks, in order, under one budget."""

    def plan(self, view, batch):
        batch.decode_all()
        batch.prefill_all()
        batch.schedule_waiting()
