"""What schemathesis is told about our services."""

import schemathesis

schemathesis.serializer.alias("application/partial-upload", "application/octet-stream")


@schemathesis.check
def no_internal_error(ctx, response, case) -> None:
    """The other 5xx are documented states: no free port, no such image, stopping."""
    assert response.status_code != 500, "an unexpected failure of the service"
