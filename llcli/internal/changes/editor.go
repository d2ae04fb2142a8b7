// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/spf13/cobra"
)

const editorHead = `# The spec of %s. Save and leave the editor to apply it;
# leave the text unchanged or empty to change nothing.
`

func editCommand(a *command.App) *cobra.Command {
	var options Options
	cmd := &cobra.Command{
		Use:   "edit KIND NAME",
		Short: "Edit an object in an editor",
		Long: `Edit an object as YAML in the editor named by $VISUAL or $EDITOR, and apply it. Changes
that another user makes in the meantime are not overwritten. A rejected text is kept in
a file that the error names.`,
		Example: "  llcli edit service web\n  EDITOR=nano llcli edit interface eth0",
		Args:    kinds.NeedKind("llcli edit KIND NAME"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			change, err := options.Params()
			if err != nil {
				return err
			}
			kind, names, err := kinds.RefArgs(args)
			if err != nil {
				return err
			}
			if len(names) != 1 {
				return command.Usagef("want one object: llcli edit KIND NAME")
			}
			return editObject(ctx, a, d, api.ObjectRef{Kind: kind, Name: names[0]}, change)
		}),
		ValidArgsFunction: kinds.CompleteRefs(a, 1),
	}
	options.Bind(cmd)
	return cmd
}

// editObject lets the user edit an object, and applies the result.
func editObject(ctx context.Context, a *command.App, d command.Daemon, ref api.ObjectRef, change api.Change) error {
	object, err := a.Object(ctx, d, ref.Kind, ref.Name)
	if err != nil {
		return err
	}
	if err := refuseFile(&object); err != nil {
		return err
	}
	revision := object.Revision
	object.Status, object.Revision = nil, 0
	text, err := document.ToYAML(object)
	if err != nil {
		return err
	}
	text = append(fmt.Appendf(nil, editorHead, ref), text...)
	path, edited, err := editText(ctx, a, text)
	if err != nil {
		return err
	}
	if bytes.Equal(text, edited) || len(bytes.TrimSpace(edited)) == 0 {
		a.Printf("nothing was changed\n")
		return os.RemoveAll(filepath.Dir(path))
	}
	if err := applyEdited(ctx, a, d, ref, revision, path, edited, change); err != nil {
		return fmt.Errorf("%w\n  your text is kept in %s: correct it, then run llcli apply -f %s", err, path, path)
	}
	return os.RemoveAll(filepath.Dir(path))
}

// editText lets the user edit text. It returns the path of the file, which the caller must remove,
// and the edited text.
func editText(ctx context.Context, a *command.App, text []byte) (path string, edited []byte, err error) {
	dir, err := os.MkdirTemp("", "llcli-")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "object.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := a.Edit(ctx, path); err != nil {
		return "", nil, errors.Join(fmt.Errorf("the editor: %w", err), os.RemoveAll(dir))
	}
	edited, err = os.ReadFile(path)
	return path, edited, err
}

// applyEdited applies edited text, provided that the object is still at the revision on which the
// text is based.
func applyEdited(ctx context.Context, a *command.App, d command.Daemon, ref api.ObjectRef, revision uint64, path string, text []byte, change api.Change) error {
	docs, err := parseManifest(path, text)
	if err != nil {
		return err
	}
	if len(docs) != 1 || docs[0].ref() != ref {
		return fmt.Errorf("%s: expected only %s; use llcli apply to create other objects, llcli delete to remove objects", path, ref)
	}
	t := Transaction{Method: api.MethodApply, Objects: objectsOf(docs), Change: change}
	err = Attempt(ctx, a, d, t, func(*Transaction) error {
		var is api.Object
		if err := d.Call(ctx, api.MethodGet, api.GetParams{Kind: ref.Kind, Name: ref.Name}, &is); err != nil {
			return err
		}
		if is.Revision != revision {
			return fmt.Errorf("%s was changed by another user in the meantime", ref)
		}
		return nil
	})
	return locate(err, docs)
}
