// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// conditionPatch is a strategic merge patch: conditions are merged by their type.
func conditionPatch(condition corev1.NodeCondition) ([]byte, error) {
	return json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
}
