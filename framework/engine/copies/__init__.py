"""KV between instances: transfers, their shares of links, live migration."""
