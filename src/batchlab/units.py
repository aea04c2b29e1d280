"""Of times: the clock counts ns, people read ms and s."""

NS_IN_MS = 10**6
NS_IN_S = 10**9
