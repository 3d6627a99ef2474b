"""Data sets, rewards, tokenising and the measures of evaluation.

`rledger.tasks.build.build_tasks` makes the real role, `rledger.tasks.fake.FakeTasks` the fake one.
Nothing is imported here: reward processes import from this package and must start quickly.
"""
