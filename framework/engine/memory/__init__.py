"""The records and lists of a run: requests, instances, queues, running orders, blocks of KV."""
