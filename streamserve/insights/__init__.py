"""Windowed figures of every route, model and context, from the app's predictions and outcomes (extra `insights`).

What a record changes is decided in plain code without a clock, a broker or Faust: `cells`, `seen`, `drift`, `slices`,
`board`. `app` is the shell: a Faust app that reads, keeps the state in a changelog, publishes and serves a web view.
"""
