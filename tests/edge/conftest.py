"""What the tests of the listener's shared parts need: a client of Kafka's protocol, which stands on them."""

from tests.kafka.conftest import peer as peer
