# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
.PHONY: help build generate test test-unit lint fmt check-generated setup

export PATH := $(PATH):/usr/local/go/bin
export CGO_ENABLED := 0
GO ?= go

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "%-18s %s\n", $$1, $$2}'

setup: ## install what the tests need (root, Debian 12)
	.ci/setup test

test: setup ## set up what the tests need and run every tier (root)
	$(GO) vet ./...
	$(GO) test ./...

test-unit: ## the tests that need neither root, network nor clang
	$(GO) test -short ./...

fmt: ## format Go
	gofmt -w $$(git ls-files '*.go' | grep -v '_bpfel.go$$')
