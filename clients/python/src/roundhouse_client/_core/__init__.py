"""What needs no network: parsing, policies and state machines, which both clients use."""
