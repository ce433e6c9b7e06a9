"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs in kafka-python's schemas, in short."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest

DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
SET, DELETE, APPEND, SUBTRACT = range(4)


def versions(api):
    return pytest.mark.parametrize("version", range(api.SERVED.min, api.SERVED.max + 1))


def describe(*resources, synonyms=False, documentation=False):
    """`resources`: (type, name, names of configs or None)."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    asked = [
        resource(resource_type=kind, resource_name=name, configuration_keys=keys) for kind, name, keys in resources
    ]
    return {"resources": asked, "include_synonyms": synonyms, "include_documentation": documentation}


def alter(*resources, validate_only=False):
    """`resources`: (type, name, {config: value})."""
    resource = AlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig
    asked = [
        resource(kind, name, [config(name=each, value=value) for each, value in configs.items()])
        for kind, name, configs in resources
    ]
    return {"resources": asked, "validate_only": validate_only}


def change(*resources, validate_only=False):
    """`resources`: (type, name, [(config, operation, value)])."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig
    asked = [
        resource(kind, name, [config(name=each, config_operation=operation, value=v) for each, operation, v in changes])
        for kind, name, changes in resources
    ]
    return {"resources": asked, "validate_only": validate_only}


def told(answer):
    return [(line.error_code, line.error_message) for line in answer.responses]
