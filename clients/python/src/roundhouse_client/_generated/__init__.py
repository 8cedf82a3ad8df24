"""The models of responses, generated from the OpenAPI documents."""
