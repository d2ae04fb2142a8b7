// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// Reasons of events.
const (
	reasonInvalid = "LoxilightInvalid" // the object cannot be translated
	reasonRefused = "LoxilightRefused" // the daemon rejects it
	reasonFailing = "LoxilightFailing" // the data plane cannot implement it

	reasonAmbiguous = "LoxilightAmbiguous" // the API does not define the order of two policies
)

// nodeOf names a node in an event as kubelets do.
func nodeOf(name string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
}

// about returns the cluster object from which one of our objects was made.
func (a *Agent) about(ref api.ObjectRef) corev1.ObjectReference {
	switch ref.Kind {
	case api.KindPeer:
		return nodeOf(ref.Name)
	case api.KindService:
		if s := a.serviceNamed(ref.Name); s != nil {
			return aboutService(s)
		}
	case api.KindPolicy, api.KindEntity, api.KindNamespace:
		if object := a.aboutParticipant(ref); object != nil {
			return *object
		}
	}
	return nodeOf(a.o.NodeName)
}

// reportProblem reports that a cluster object is not in force.
func (a *Agent) reportProblem(about corev1.ObjectReference, reason string, err error) {
	a.log.Warn("not in force", slog.String("kind", about.Kind), slog.String("namespace", about.Namespace), slog.String("name", about.Name), slog.Any("error", err))
	a.events.Warn(about, reason, err.Error())
}

// refused is called when the daemon rejects an object.
func (a *Agent) refused(ref api.ObjectRef, err *api.Error) {
	a.metrics.refusals.Add(1, ref.Kind)
	message := err.Message
	if ref.Kind == api.KindPolicy {
		message += "; until the daemon accepts it, its pods are isolated in the directions that it names, and it allows nothing"
	}
	a.events.Warn(a.about(ref), reasonRefused, message)
	if ref == podNetwork {
		a.networkRefused(err)
	}
}

// failing is called when the data plane cannot implement an object.
func (a *Agent) failing(ref api.ObjectRef, message string) {
	a.log.Warn("the data plane cannot apply an object", slog.String("object", ref.String()), slog.String("message", message))
	a.events.Warn(a.about(ref), reasonFailing, ref.String()+": "+message)
}

// healthPortFailed is called when the port of a Service's health check cannot be opened.
func (a *Agent) healthPortFailed(key services.Key, err error) {
	if s := a.services.Get(key.String()); s != nil {
		a.reportProblem(aboutService(s), reasonFailing, err)
	}
}

// reportInvalid reports the problems of a cluster object with a key, unless the last report, in
// reported, was the same.
func (a *Agent) reportInvalid(reported map[string]string, key string, about corev1.ObjectReference, problems []string) {
	text := strings.Join(problems, "; ")
	switch {
	case text == "":
		delete(reported, key)
	case text != reported[key]:
		a.reportProblem(about, reasonInvalid, errors.New(text))
		reported[key] = text
	}
}
